"""Its folder, which has the helpers of the tests in the folders below it, is one that tests import from."""
