"""The gateway to Java: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(__name__, "there is no Java behind the API.")
