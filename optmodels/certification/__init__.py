"""Plans confirmed by simulation, for every formulation: the rounds, what a plan's document states about them, the
check.

A formulation has a `Certifier` (what a promise, a cut and a relaxed model are there) and adds to the document and the
check only what is its own.

Each pass of rounds has its own model. The first is the instance's own. The latencies of a model are bounds, often far
above what requests see. So a relaxed model follows, with longer limits or smaller margins, where simulation alone keeps
plans to the true ones.
"""
