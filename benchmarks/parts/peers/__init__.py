"""Other packages that `closelook bench peers` compares with: `script` explains texts by one, in its `interpreter`."""
