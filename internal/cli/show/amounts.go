// SPDX-License-Identifier: Apache-2.0

package show

import "fmt"

// Mebibytes formats an amount in MiB. Mebibytes rounds up, so that usage one byte above a
// limit is visible.
func Mebibytes(bytes uint64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }

// Percent formats parts per million as a percentage, with no more digits than needed.
func Percent(ppm uint32) string { return fmt.Sprintf("%g %%", float64(ppm)/10_000) }

// PercentTo formats a guarantee and a higher maximum as "20-50 %". If maximum is 0,
// PercentTo formats "20 %".
func PercentTo(guarantee, maximum uint32) string {
	if maximum == 0 {
		return Percent(guarantee)
	}
	return fmt.Sprintf("%g-%s", float64(guarantee)/10_000, Percent(maximum))
}
