"""Command-line flags made from the fields of the runtime's configuration, and back again.

A field made by `option(...)` becomes a flag with its help, group, default and type; fields that
hold another dataclass are walked into. Values that were not given keep the field's own default, so a
default is written down once, in the dataclass.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

AUTO = object()
"""Stands for a flag given as `auto`: the field keeps None, and a length may also shrink."""

_Config = TypeVar("_Config")


@dataclass(frozen=True, slots=True)
class Flag:
    """One field as the command line shows it.

    Attributes:
        name: the field's name, and the parameter's.
        annotation: what typer builds the option from.
    """

    name: str
    annotation: Any
    default: Any

    def parameter(self) -> inspect.Parameter:
        """The flag as a keyword parameter of a command."""
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=self.annotation,
        )


def flags_of(config: type[Any]) -> list[Flag]:
    """The flags of a configuration class, in the order in which groups should be shown."""
    hints = get_type_hints(config)
    flags = []
    for item in fields(config):
        if is_dataclass(hints[item.name]):
            flags += flags_of(hints[item.name])
        elif "help" in item.metadata:
            flags.append(_flag(item, hints[item.name]))
    return flags


def from_flags(config: type[_Config], values: Mapping[str, Any]) -> _Config:
    """A configuration out of flag values; names that are not its fields are left to others.

    Raises:
        ConfigError: a value is out of range.
    """
    hints = get_type_hints(config)
    arguments: dict[str, Any] = {}
    for item in fields(config):  # type: ignore[arg-type]
        hint = hints[item.name]
        if is_dataclass(hint):
            arguments[item.name] = from_flags(hint, values)  # type: ignore[arg-type]
        elif item.name in values:
            value = values[item.name]
            arguments[item.name] = tuple(value or ()) if get_origin(hint) is tuple else value
    if arguments.get("max_model_len") is AUTO:
        arguments["auto_length"] = True
    return config(**{name: value for name, value in arguments.items() if value is not AUTO})


def with_flags(command: Callable[..., Any], flags: list[Flag]) -> Callable[..., Any]:
    """`command` with its `**values` replaced by the flags, as typer reads signatures."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    def run(**values: Any) -> Any:
        return command(**values)

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in (*own, *(flag.parameter() for flag in flags))
    ]
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run


def _flag(item: Field[Any], hint: Any) -> Flag:
    name, meta = item.name, item.metadata
    default = item.default if item.default is not MISSING else None
    flag = meta["flag"] or "--" + name.replace("_", "-")
    shared = {"help": meta["help"], "rich_help_panel": meta["group"]}
    inner, optional = _without_none(hint)
    if not flag.startswith("-"):
        kind: Any = Annotated[inner, typer.Argument(metavar=flag, **shared)]
        return Flag(name, kind, default)
    if get_origin(inner) is tuple:
        listed: Any = types.GenericAlias(list, (get_args(inner)[0],))
        return Flag(name, Annotated[listed, typer.Option(flag, **shared)], [])
    if meta["parse"] or (optional and inner is not str):
        shared |= {
            "parser": _parser(meta["parse"] or inner),
            "metavar": "VALUE|auto",
        }
    if default is None:
        shared["show_default"] = False
    annotation = inner | None if optional else inner
    return Flag(name, Annotated[annotation, typer.Option(flag, **shared)], default)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        rest = [arm for arm in get_args(hint) if arm is not type(None)]
        return rest[0], True
    return hint, False


def _parser(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parser(text: str) -> Any:
        if text == "auto":
            return AUTO
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is neither a number nor auto.") from error

    return parser
