// Light or dark, before anything is painted: the user's choice, else the system's.
// A plain script, not a module: modules run after the first paint.
(() => {
  const chosen = localStorage.getItem("strandlog.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
