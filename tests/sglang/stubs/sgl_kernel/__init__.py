"""Import-only stand-in for SGLang's kernel package, which isn't published for CPU: SGLang's own forward_native paths run."""

__version__ = "0.0.0+stub"


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments: object, **_options: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name}: there is no CPU kernel package here")

    return missing
