"""SGLang imports names of FlashInfer at its head; the run on GPUs samples with PyTorch and attends with Triton."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: object, **__: object) -> None:
        raise RuntimeError(f"{name} of FlashInfer is not in this build")

    return absent
