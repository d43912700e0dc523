"""Tools that agents call inside their turns."""

from selfplay.tools.tool import Tool, ToolError
from selfplay.tools.toolbox import Toolbox

__all__ = ["Tool", "ToolError", "Toolbox"]
