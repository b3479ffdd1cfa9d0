"""PyFlink's module paths over Headrace: in a PyFlink program, `pyflink` becomes `headrace.pyflink` and nothing else.

    from headrace.pyflink.common import Types, WatermarkStrategy
    from headrace.pyflink.datastream import StreamExecutionEnvironment

The modules are those of PyFlink 2.3 and mostly name Headrace's own classes, so both kinds of imports mix. What means
nothing here is accepted and said once (`HeadraceIgnoredOption`); what is not here says what to use instead.
"""

from headrace.datastream.ignored import HeadraceIgnoredOption

__all__ = ["HeadraceIgnoredOption"]
