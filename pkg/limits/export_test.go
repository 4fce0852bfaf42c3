// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bytes"
	"io"
	"os"
	"time"
)

// These functions replace reads of files in the fuzzers, because files are too slow.

func Decode(page []byte) ([]Device, error) {
	devices, _, err := readLimitsFrom(bytes.NewReader(page), int64(len(page)))
	return devices, err
}

func Encode(devices []Device) ([]byte, error) { return newLimitsPage(devices) }

// DecodeUsage decodes a usage page as if all slots were locked.
func DecodeUsage(page io.ReaderAt, size int64) (Usage, error) {
	return readUsageFrom(page, size, func(slots int64) ([]bool, error) {
		held := make([]bool, slots)
		for i := range held {
			held[i] = true
		}
		return held, nil
	})
}

// HeldSlots returns the locked slots among the first slots of a page.
func HeldSlots(page *os.File, slots int64) ([]bool, error) { return heldSlots(page, slots) }

// LockBudget is the most processor time that a read may spend on locks.
const LockBudget = lockBudget

// ThreadTime returns the processor time of the calling thread.
func ThreadTime() time.Duration { return threadTime() }
