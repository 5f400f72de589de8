"""For other ASGI servers: `uvicorn --factory router.asgi:create`. Settings come from the environment alone."""

from router.app import Router
from router.cli.sources import load
from router.logs import configure


def create() -> Router:
    """Raises SettingsError or ValueError where a setting cannot be obeyed."""
    settings = load({}).settings
    configure(settings.log_level, settings.log_format)
    return Router(settings)
