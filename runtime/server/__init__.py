"""HTTP in OpenAI's dialect over an `EngineClient`. Knows text and requests; computes nothing.

A request passes `middleware` (id, time, key), `body` and `protocol` (strict JSON, types, ranges),
`refusals` (what cannot be honoured), `intake` (tokens, limits, namespace), `generation` (the engine),
and leaves through `chat` or `completions` as a whole answer or a `stream`. `app` puts it together;
`serve` runs it.
"""
