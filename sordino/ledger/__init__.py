"""The ledger and claims: what was done to the data, what may be claimed, what voids a claim."""
