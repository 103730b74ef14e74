"""Plans confirmed by simulation, for every formulation: the rounds, the statements in a plan's document, the
check.

A formulation has a `Certifier` (its promises, cuts and relaxed models) and adds to the document and the
check only its own parts.

Each pass of rounds has its own model. The first is the instance's own. The latencies of a model are bounds, often far
above what requests see. So a relaxed model follows, with longer limits or smaller margins, where simulation alone keeps
plans to the true ones.
"""
