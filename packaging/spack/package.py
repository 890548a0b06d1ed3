# SPDX-License-Identifier: Apache-2.0
"""A recipe for Spack: var/spack/repos/builtin/packages/libddl/package.py. Each release fills in the
digest of the sdist."""

from spack.package import *


class Libddl(CMakePackage, PythonExtension):
    """One fast collective communication library for every framework, on any cluster."""

    homepage = "https://libddl.example/docs"
    url = "https://libddl.example/releases/libddl-0.2.0.tar.gz"
    git = "https://libddl.example/source"

    license("Apache-2.0")

    version("0.2.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant("python", default=True, description="Install the Python packages and ddlrun")

    depends_on("c", type="build")
    depends_on("cmake@3.18:", type="build")
    conflicts("platform=darwin")
    conflicts("platform=windows")

    with when("+python"):
        extends("python@3.10:3.13")
        depends_on("py-pip", type="build")
        depends_on("py-scikit-build-core@1.1:1", type="build")
        depends_on("py-cffi@1.17:", type=("build", "run"))
        depends_on("py-msgspec@0.19:", type=("build", "run"))
        depends_on("py-numpy@1.24:", type=("build", "run"))
        depends_on("py-tomli@2:", when="^python@:3.10", type=("build", "run"))

    root_cmakelists_dir = "libddl"

    def cmake_args(self):
        return [self.define("DDL_TESTS", False)]

    @run_after("install")
    def install_python(self):
        if self.spec.satisfies("+python"):
            pip = python.with_default_args("-m", "pip")
            pip("install", "--no-deps", "--no-build-isolation", f"--prefix={self.prefix}", ".")
