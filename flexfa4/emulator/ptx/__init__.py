"""PTX text to a flat program: `syntax` splits statements, `decode` resolves names and operand forms."""
