"""The command line ``headrace``, which `headrace.program` starts; needs the extra ``cli``."""
