"""How each workload kind of this package is prepared: reference, request, parity gate."""
