"""Privacy losses: dominating pairs of single releases, their composition, and certified bounds on ε and δ.

This package is mathematics only. It knows neither events nor data; `sordino.events` says which pair an event has, and
`sordino.accounting` asks for ε. From the bottom up:

    pairs, sampled_pairs, allocation    dominating pairs (P, Q), as masses of cells of λ = log dP/dQ
    lattice                             one sampled release on a lattice of losses, rounded up or binned
    saddle                              where the answer is about, to choose lattice and tilt
    tilted_windows, spectra, tail_sums  many releases composed by Fourier transforms, with every error bounded
    composed_bounds, certified_bounds   the best upper and lower bound on ε and δ in one direction
    consistency, soundness              other bounds with which the result must agree
    closed_forms, gaussian, renyi       closed forms and Rényi divergences
    stopping, selection, shuffling      theorems on searches, and on shuffled passes
    noise_ends                          what it costs that generated noise ends
"""
