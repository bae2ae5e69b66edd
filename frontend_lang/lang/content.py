"""What a state says: tokens that exist, and what follows them and is not tokenized yet.

    ids      read or written by the model; only ever appended to
    pending  text and the ends of messages behind them, in the order in which they were added

When a model is asked, `resolve` writes the pending part as text with the chat template's frames, and
`commit` moves it, with the answer, into `ids`. Text that follows generated tokens is tokenized by
itself, from the seam on; text before and after a fork, or after a `select`, is tokenized together, as
in a prompt written at once. The end of a message is held back until it is known what follows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from .backends.base import Generated, Message, Prompt
from .chat import Frames, Tools
from .errors import UsageError


@dataclass(frozen=True, slots=True)
class Opened:
    """A message begins."""

    role: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A message ends."""


Item = str | Opened | Closed
Status = Literal["open", "ended", "closed"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The pending part as text, and where the conversation stands behind it."""

    text: str
    roles: tuple[str, ...]
    status: Status


@dataclass(slots=True)
class Content:
    """The content of one state.

    Attributes:
        text: of `ids`; of everything said so far, for a backend without tokens.
        roles: of the messages whose opening is in `text`.
        status: of the last of them: open; ended, but its closing frame is not in `text`; or closed,
            as it also is if there is none.
        messages: everything said in roles, pending included.
        open_role: of the message that is open, pending included.
        loose: whether anything was said outside of roles.
        num_shown: leading characters of the pending text that readers have been shown already.
        own: what was added since the state was forked.
        version: grows with every change.
        scopes: name -> what was said since that scope began.
        told: instructions about tools that are in the content.
        tools: those that the chat template lists.
    """

    ids: tuple[int, ...] = ()
    text: str = ""
    pending: list[Item] = field(default_factory=list)
    roles: tuple[str, ...] = ()
    status: Status = "closed"
    messages: list[Message] = field(default_factory=list)
    open_role: str | None = None
    loose: bool = False
    num_shown: int = 0
    own: list[Item] = field(default_factory=list)
    version: int = 0
    scopes: dict[str, list[str]] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    tools: Tools = ()

    def fork(self) -> Content:
        """A copy for a branch."""
        return replace(
            self,
            pending=list(self.pending),
            messages=list(self.messages),
            own=[],
            scopes={name: list(parts) for name, parts in self.scopes.items()},
        )

    def add(self, item: Item) -> None:
        """Add text, or begin or end a message.

        Raises:
            UsageError: a message begins inside another, or none is open that could end.
        """
        if isinstance(item, Opened):
            if self.open_role is not None:
                raise UsageError(
                    f"A message of {item.role} cannot begin inside the {self.open_role} message."
                )
            self.open_role = item.role
            self.messages.append(Message(item.role, ""))
        elif isinstance(item, Closed):
            if self.open_role is None:
                raise UsageError("There is no open message that could end.")
            self.open_role = None
        else:
            self._say(item)
        self.pending.append(item)
        self.own.append(item)
        self.version += 1

    def end(self, role: str) -> None:
        """End the message that is open.

        Raises:
            UsageError: none is, or it is one of another role.
        """
        if self.open_role not in (None, role):
            raise UsageError(
                f"The {self.open_role} message is open, and cannot end as one of {role}."
            )
        self.add(Closed())

    def _say(self, text: str) -> None:
        if self.open_role is None:
            self.loose = self.loose or bool(text.strip())
        else:
            last = self.messages[-1]
            self.messages[-1] = Message(last.role, last.content + text)
        for parts in self.scopes.values():
            parts.append(text)

    async def resolve(self, frames: Frames | None, *, generates: bool = False) -> Resolved:
        """The pending part as text; without `frames`, what was said alone.

        Args:
            generates: the model will write behind it.
        """
        out: list[str] = []
        roles, status = self.roles, self.status
        items = [item for item in self.pending if item != ""]
        for index, item in enumerate(items):
            if isinstance(item, Opened):
                last = generates and index == len(items) - 1
                out.append(await self._opening(frames, (*roles, item.role), status, last))
                roles, status = (*roles, item.role), "open"
            elif isinstance(item, Closed):
                status = "ended"
            else:
                if status == "ended":
                    out.append((await frames.around(roles, self.tools))[-1] if frames else "")
                    status = "closed"
                out.append(item)
        if status == "ended":
            out.append((await frames.around(roles, self.tools))[-1] if frames else "")
            if generates:
                status = "closed"
        return Resolved("".join(out), roles, status)

    async def _opening(
        self, frames: Frames | None, roles: tuple[str, ...], status: Status, generates: bool
    ) -> str:
        if frames is None:
            return ""
        opening = await frames.opening(roles, self.tools, generates=generates)
        if status == "closed" and len(roles) > 1:
            # The end of the message before stands already, with something behind it.
            closing = (await frames.around(roles[:-1], self.tools))[-1]
            return opening[_shared(opening, closing) :]
        return opening

    def prompt(self, resolved: Resolved) -> Prompt:
        """What a request continues."""
        return Prompt(
            ids=self.ids,
            text=resolved.text,
            whole=self.text + resolved.text,
            messages=tuple(self.messages),
            is_open=self.open_role is not None,
            loose=self.loose,
        )

    def commit(self, resolved: Resolved, generated: Generated) -> None:
        """Take in the first sample of an answer to `prompt(resolved)`."""
        sample = generated.samples[0]
        rest = sample.rest if generated.prompt_ids is not None else ""
        if generated.prompt_ids is not None:
            self.ids = (*self.ids, *generated.prompt_ids, *sample.kept_ids)
        self.text += resolved.text + sample.text[: len(sample.text) - len(rest)]
        self._settle(resolved, rest, len(rest))
        self._say(sample.text)
        self.own.append(sample.text)

    def amend_last(self, said: str, shown: str) -> None:
        """Let the conversation show `shown` where it ends with `said`; the tokens stay."""
        if self.open_role is not None:
            last = self.messages[-1]
            self.messages[-1] = Message(last.role, last.content.removesuffix(said) + shown)

    def commit_option(self, resolved: Resolved, option: str) -> None:
        """Add the option that a select took; it stays text, to be tokenized with what follows."""
        text = resolved.text + option
        self._settle(resolved, text, len(text))
        self._say(option)
        self.own.append(option)

    def _settle(self, resolved: Resolved, rest: str, num_shown: int) -> None:
        self.pending = [rest] if rest else []
        self.roles, self.status = resolved.roles, resolved.status
        self.num_shown = num_shown
        self.version += 1

    def adopt(self, branch: Content) -> None:
        """Become what `branch`, forked from this content as it is now, has become."""
        own, version, scopes = [*self.own, *branch.own], self.version, self.scopes
        copy = branch.fork()
        for name in Content.__slots__:
            setattr(self, name, getattr(copy, name))
        self.own, self.version, self.scopes = own, version + 1, scopes
        said = "".join(item for item in branch.own if isinstance(item, str))
        for parts in scopes.values():
            parts.append(said)

    @property
    def may_list_tools(self) -> bool:
        """Whether the chat template can still list tools: there are messages, and none is written yet."""
        return not self.roles and any(isinstance(item, Opened) for item in self.pending)

    def tell(self, instruction: str) -> None:
        """Put an instruction where the model will read it, once.

        It joins the first system message, or becomes one at the start, if no model has read anything
        yet; otherwise it becomes a system message here, before a message that has just been opened.

        Raises:
            UsageError: the open message has been read already.
        """
        if instruction in self.told:
            return
        self.told |= {instruction}
        items: list[Item] = [Opened("system"), instruction, Closed()]
        message = Message("system", instruction)
        if not self.text and Opened("system") in self.pending:
            self._extend_system(f"\n\n{instruction}")
        elif not self.text:
            self.pending[:0] = items
            self.messages.insert(0, message)
        elif self.open_role is None:
            self.pending += items
            self.messages.append(message)
        else:
            opened = [i for i, item in enumerate(self.pending) if isinstance(item, Opened)]
            if not opened:
                raise UsageError("The model must be told of tools before its message begins.")
            self.pending[opened[-1] : opened[-1]] = items
            self.messages.insert(-1, message)
        self.version += 1

    def _extend_system(self, text: str) -> None:
        start = self.pending.index(Opened("system"))
        ends = (i for i in range(start, len(self.pending)) if self.pending[i] == Closed())
        self.pending.insert(next(ends, len(self.pending)), text)
        index = next(i for i, m in enumerate(self.messages) if m.role == "system")
        self.messages[index] = Message("system", self.messages[index].content + text)


def _shared(left: str, right: str) -> int:
    size = min(len(left), len(right))
    return next((i for i in range(size) if left[i] != right[i]), size)
