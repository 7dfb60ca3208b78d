"""Settings: declared once, validated here, read everywhere."""
