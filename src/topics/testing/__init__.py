"""What tests need of the outside world, under their control: simulated time, host and disk.

Shipped with the package so that users can test on it too; never imported by the product.
"""
