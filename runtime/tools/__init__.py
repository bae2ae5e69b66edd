"""Tool calls: how models are told of functions, and how they write that they call one.

    form         the forms in which models write calls, and which of them a model uses
    definitions  which definitions of tools are taken, and what models are told of them
    instruction  what tells a model of tools whose chat template does not
    json_text    JSON read character by character
    call_json    the calls in such a text
    parser       one output, split into what is said and what is called, as it comes

Knows texts and definitions; nothing of requests, tokens' ids or HTTP.
"""
