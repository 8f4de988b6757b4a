"""The only kernelspec that Lab knows: a name for the kernels of sessions. It starts nothing, whatever is installed."""

from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel

NAME = "kernelmcp"


class SessionSpecs(KernelSpecManager):
    def find_kernel_specs(self) -> dict[str, str]:
        return {NAME: str(self.data_dir)}

    def get_kernel_spec(self, kernel_name: str) -> Any:
        if kernel_name != NAME:
            raise NoSuchKernel(kernel_name)
        argv = ["kernelmcp-sessions-are-started-by-their-server"]
        return KernelSpec(argv=argv, display_name="kernelmcp session", language="python", resource_dir="")
