"""What passes ask of a graph and the ways in which they edit it; what is used most has its name here.

It knows operators of ours by their domain alone.
"""

from .channels import ELEMENTS
from .convert import attached, import_model
from .disputed import is_disputed
from .domains import DOMAIN
from .facts import Scope, optional_input, scopes
from .labels import label, labelled
from .lengths import ONE, Length, dims
from .messages import walk_graphs, walk_nodes
from .pointwise import NotPointwiseError, is_pointwise
from .shapes import Dim, Shape, TensorType, broadcast, element_count, equal, show

__all__ = [
  "DOMAIN",
  "ELEMENTS",
  "ONE",
  "Dim",
  "Length",
  "NotPointwiseError",
  "Scope",
  "Shape",
  "TensorType",
  "attached",
  "broadcast",
  "dims",
  "element_count",
  "equal",
  "import_model",
  "is_disputed",
  "is_pointwise",
  "label",
  "labelled",
  "optional_input",
  "scopes",
  "show",
  "walk_graphs",
  "walk_nodes",
]
