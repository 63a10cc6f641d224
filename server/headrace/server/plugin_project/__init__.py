"""Makes a project for a new device plugin from the installed code of TEMPLATE."""
