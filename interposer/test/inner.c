// SPDX-License-Identifier: Apache-2.0

__attribute__((visibility("default"))) int inner(void);

int inner(void)
{
	return 7;
}
