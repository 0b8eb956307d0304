"""The page of `hilrp serve`: pictures, models, explanations and comparisons, for several people at once.

`pictures`, `models`, `predictions`, `sessions`, `controller` and `actions` hold what happens, without a word of Gradio;
`blocks` is what is on the page, and `server` what is sent to the browser. Every request passes `gate`, which asks
`access` who may use the page; `uploads` knows whose files those are that were sent. Pictures and results stay in memory
and are forgotten with the tab that they belong to.
"""

#: Names of this machine for itself.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
