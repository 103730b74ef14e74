"""What pyproject.toml cannot say: instances/ at the top of the repository becomes optmodels/instances in a wheel."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages(include=["optmodels*", "formulations*"]), "optmodels.instances"],
    package_dir={"optmodels.instances": "instances"},
)
