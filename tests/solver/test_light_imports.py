"""What imports leave out is there as soon as somebody asks for it."""

from __future__ import annotations

import subprocess
import sys

GRAPHS = """
import sys
from optmodels.solver.light_imports import graphs
import numpy as np, scipy.sparse as sp
at_once = "scipy.sparse.csgraph" in sys.modules  # before SciPy 1.16, scipy.sparse imports it with its linear algebra
way = sp.csr_array(np.array([[0, 3, 2, 0], [0, 0, 0, 2], [0, 0, 0, 2], [0, 0, 0, 0]], dtype=np.int32))
assert graphs().maximum_flow(way, 0, 3).flow_value == 4
assert at_once or not {"scipy.linalg", "scipy.sparse.linalg"} & set(sys.modules)
edge = graphs().laplacian(np.array([[0.0, 1.0], [1.0, 0.0]]), form="lo")
assert (edge @ np.eye(2)).tolist() == [[1.0, -1.0], [-1.0, 1.0]]
from scipy.sparse.linalg import LinearOperator, spsolve
assert isinstance(edge, LinearOperator) and sp.linalg.spsolve is spsolve
import scipy.sparse.csgraph
assert graphs() is scipy.sparse.csgraph
"""


def test_graphs_without_linear_algebra_until_it_is_needed():
    subprocess.run([sys.executable, "-c", GRAPHS], check=True)


def test_graphs_beside_linear_algebra():
    code = "import scipy.sparse.linalg; from optmodels.solver.light_imports import graphs; graphs().laplacian"
    subprocess.run([sys.executable, "-c", code], check=True)


SPECIAL = """
import scipy._lib._array_api as api
reader = api.FunctionDoc
from optmodels import special
import scipy.special
assert api.FunctionDoc is reader
assert all(getattr(special, name) is getattr(scipy.special, name) for name in special.__all__)
assert special.ndtri.__doc__.startswith("ndtri(x") and special.ndtri(0.5) == 0.0
"""


def test_special_functions_are_those_of_scipy_with_their_docstrings():
    subprocess.run([sys.executable, "-c", SPECIAL], check=True)
