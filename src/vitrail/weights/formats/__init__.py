"""The files of other systems, one module an origin; each exposes FORMATS."""
