"""Theorem 1 of the paper of DP-CDA in many digits."""

from functools import cache

import mpmath


def printed_theorem(
    noise_multiplier, *, order, n_records, n_outputs, delta, orders, of_source=True, simpler=True
):
    """Epsilon by Theorem 1, with the simpler bound of its source or without it.

    ``B(ceil(j/2))`` is printed where the source (Wang, Balle and Kasiviswanathan 2019, Theorem 27)
    has ``B(2 ceil(j/2))``.
    """
    with mpmath.workdps(80):
        rate, inverse = mpmath.mpf(order) / n_records, 1 / mpmath.mpf(noise_multiplier) ** 2

        @cache
        def alternating(j):
            return mpmath.fsum(
                (-1) ** i * mpmath.binomial(j, i) * mpmath.exp((i - 1) * i * inverse / 2)
                for i in range(j + 1)
            )

        def term(alpha, j):
            product = alternating(2 * (j // 2)) * alternating((1 + of_source) * -(-j // 2))
            if product < 0:
                raise ValueError(f"Theorem 1 takes the root of a negative number at alpha {alpha}")
            bound = 4 * mpmath.sqrt(product)
            if simpler:
                bound = min(bound, 2 * mpmath.exp((j - 1) * j * inverse / 2))
            return rate**j * mpmath.binomial(alpha, j) * bound

        first = min(4 * (mpmath.exp(inverse) - 1), 2 * mpmath.exp(inverse))
        claims = []
        for alpha in orders:
            inner = 1 + rate**2 * mpmath.binomial(alpha, 2) * first
            inner += mpmath.fsum(term(alpha, j) for j in range(3, alpha + 1))
            renyi = n_outputs * mpmath.log(inner) / (alpha - 1)
            claims.append(renyi + mpmath.log(1 / mpmath.mpf(delta)) / (alpha - 1))
        return float(min(claims))
