"""Programs that do five-step work durably, each in its own idiom and in a process of its own.

Each is started with the URL of its store. For every line `COUNT ABREAST` of its input it does so
many works, so many at once, checks every result and answers `done`.
"""
