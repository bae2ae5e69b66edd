"""The subcommands of `ramet`, one module each: `register(app, settings)` adds its commands.

They import the runtime inside functions only, so that `import ramet` stays light.
"""
