"""Recipe section `pods`: what the pods of runs ask of a Kubernetes cluster.

Here: the models, in Kubernetes' own terms. Not here: how they reach Dagster (`dflash_assets.assets.pods`), and what all runs of an
installation share: image, secrets, working copy (deploy/kubernetes/values.yaml).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from dflash_assets.recipe.base import RecipeModel

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?$"
"""Numbers with the suffixes of Kubernetes' resource quantities: `500m`, `2`, `8Gi`."""
LABEL = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
"""Key of a label or taint: a name, with a DNS prefix before a slash if it has one."""
LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$"

Quantity = Annotated[str, Field(pattern=QUANTITY)]
LabelKey = Annotated[str, Field(pattern=LABEL)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]


class Toleration(RecipeModel):
    """A taint of nodes that a pod may run on in spite of it."""

    key: LabelKey | None = None
    """Key of the taint; null, with operator Exists, is every taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Exists`: whatever value the taint has. `Equal`: this value."""
    value: LabelValue | None = None
    """Value of the taint, for `Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; null is each of them."""
    toleration_seconds: NonNegativeInt | None = None
    """With `NoExecute`: seconds until the pod is evicted all the same; null is never."""

    @model_validator(mode="after")
    def _taken_by_kubernetes(self) -> Self:
        if (self.operator == "Equal") != (self.value is not None):
            raise ValueError("operator Equal and `value` belong together: give both or neither")
        if self.key is None and self.operator == "Equal":
            raise ValueError("a toleration without a key is for every taint: its operator is Exists")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("toleration_seconds needs effect NoExecute")
        return self


class PodSpec(RecipeModel):
    """One kind of pod. What isn't given stays as the installation has it."""

    gpus: NonNegativeInt = 0
    """GPUs of the run's own container: for a run that launches its servers within its pod (`generation.engine.launch`). A run that asks
    servers elsewhere needs none."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Name under which the nodes offer their GPUs."""
    cpu: Quantity | None = None
    """CPUs asked for, e.g. `2`. No limit is set: a client that is held back leaves GPUs idle."""
    memory: Quantity | None = None
    """Memory asked for, e.g. `8Gi`, and the limit: a pod that needs more would be evicted at a bad moment."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that don't keep the pod off a node."""


class PodsSpec(RecipeModel):
    """Pods of this recipe's runs, where Dagster launches runs as pods of Kubernetes; elsewhere it changes nothing."""

    generation: PodSpec = PodSpec()
    """Runs of `completions`."""
    other: PodSpec = PodSpec()
    """Runs of everything else: sources and blend, verdicts, training set."""
