"""Who sends an HTTP request: passwords, tokens, certificates, sessions; and from which site."""
