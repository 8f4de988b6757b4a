"""The tests. What stands here comes before every import of theirs."""

import sys

# jsonschema checks international addresses (IRIs) with it, which no schema of the tests has, and it builds 38 parsers
# when it is imported: a second or two in each worker. Without it jsonschema does as where its extra is not installed.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
