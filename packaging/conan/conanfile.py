# conan create packaging/conan
import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Lockstep(ConanFile):
    name = "lockstep"
    version = "0.1.0"
    license = "MIT"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False]}
    default_options = {"shared": True}
    requires = "eigen/3.4.0", "fmt/9.1.0", "nlohmann_json/3.11.2", "openssl/[>=3.0]", "xxhash/0.8.1", "zlib/[>=1.2.13]"
    generators = "CMakeDeps"

    def export_sources(self):
        copy(self, "*", os.path.join(self.recipe_folder, "..", ".."), self.export_sources_folder, excludes="build/*")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({
            "BUILD_SHARED_LIBS": bool(self.options.shared), "LOCKSTEP_CPU_LEVELS": "all",
            "LOCKSTEP_BUILD_TESTS": False, "LOCKSTEP_BUILD_SAMPLES": False, "LOCKSTEP_WITH_ONEDNN": "OFF",
            "LOCKSTEP_WITH_PNG": "OFF", "LOCKSTEP_WITH_JPEG": "OFF"})
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.libs = ["lockstep_launch", "lockstep"]  # the first one is static: it costs nothing unless used
        self.cpp_info.set_property("cmake_target_name", "lockstep::lockstep")
        self.cpp_info.set_property("cmake_target_aliases", ["lockstep::launch"])
