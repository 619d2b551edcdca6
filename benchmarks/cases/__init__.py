"""The benchmark cases, one in each file; each has `async def run(bench)`."""
