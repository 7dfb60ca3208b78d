// Applies the user's choice of a light or dark theme before the first paint; the default is the
// system's theme. This is a classic script because modules run after the first paint.
(() => {
  const chosen = localStorage.getItem("strandlog.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
