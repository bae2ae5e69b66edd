"""`python -m ramet` is the `ramet` command."""

from .cli import main

raise SystemExit(main())
