"""What a proxy costs, ours and its peers side by side: `python -m bench.cost`.

Law: every figure of a row is measured on the same bodies, the same replies and the same load as every other row's.
"""
