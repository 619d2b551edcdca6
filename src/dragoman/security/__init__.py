"""Who may call (`schemes`, `tokens`), the way out (`egress`), signatures and seals.

`App(agent, auth=[Bearer(issuer=…, audience=…), ApiKey(header="X-Key", keys=…)])` puts schemes on
the card and in force.
"""

from dragoman.security.schemes import AllOf, Anonymous, ApiKey, Basic, Scheme, Token
from dragoman.security.tokens import Bearer

__all__ = ["AllOf", "Anonymous", "ApiKey", "Basic", "Bearer", "Scheme", "Token"]
