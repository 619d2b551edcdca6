"""What is measured, one file each; each has `async def run(bench)`."""
