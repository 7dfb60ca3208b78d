"""What strandlog can do on this machine, in figures."""
