"""Programs of each framework that call the agent of `desks/remote_desk.py` through tools.

A caller is started with the URL of the agent, the name of a scene, and a folder for its files:

    price     the model calls `price` twice at the same time, for 2 and for 3 nights
    book      the model calls `book`; its two questions are answered `window` and `vegan`, through
              the framework's own pause and its saved state
    wait      the model calls `wait`, and the remote server dies and comes back meanwhile
    again     the framework makes the call `price` for 2 nights again, as when it resumes or
              retries; `times` is how often it did
    refuse    the model calls `refuse`; the error reaches the model or the caller, but not as a
              result
    picture   the model calls `picture`, and gets a file

It prints one line of JSON: an object with `answers`, and what else the scene is about: `error`,
`questions`, `times`, `files` (content and media type).
"""
