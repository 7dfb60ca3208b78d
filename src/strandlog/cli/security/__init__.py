"""Keys, certificates, tokens and passwords for the commands `tls`, `token` and `user`."""
