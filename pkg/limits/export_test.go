package limits

import (
	"bytes"
	"io"
	"os"
	"time"
)

// For the fuzzers, which have no time for files.

func Decode(page []byte) ([]Device, error) {
	devices, _, err := readLimitsFrom(bytes.NewReader(page), int64(len(page)))
	return devices, err
}

func Encode(devices []Device) ([]byte, error) { return newLimitsPage(devices) }

// DecodeUsage takes all slots to be held.
func DecodeUsage(page io.ReaderAt, size int64) (Usage, error) {
	return readUsageFrom(page, size, func(slots int64) ([]bool, error) {
		held := make([]bool, slots)
		for i := range held {
			held[i] = true
		}
		return held, nil
	})
}

// HeldSlots are those of the first slots that processes hold.
func HeldSlots(page *os.File, slots int64) ([]bool, error) { return heldSlots(page, slots) }

// LockBudget is what a read may spend on locks.
const LockBudget = lockBudget

// ThreadTime returns the processor time of the calling thread.
func ThreadTime() time.Duration { return threadTime() }
