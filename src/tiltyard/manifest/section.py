"""What every section of a manifest is: its own keys and no others, checked strictly, and never changed."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Text is never taken for a number, a bool never for an int, 3.0 never for 3; an int is a fine float."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
