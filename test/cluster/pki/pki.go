// SPDX-License-Identifier: Apache-2.0

// Package pki makes the certificates and keys of one local cluster: an authority for the cluster,
// and the certificates that the authority signs.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity exceeds the life of any local cluster.
const validity = 10 * 365 * 24 * time.Hour

// An Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is the authority's certificate.
	PEM []byte
}

// A Pair is a certificate and its key, both in PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority makes a self-signed authority.
func NewAuthority(name string) (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %q: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse authority %q: %w", name, err)
	}
	return &Authority{cert: cert, key: key, PEM: encode("CERTIFICATE", der)}, nil
}

// ReadAuthority reads an authority from the texts that KeyPEM returns and PEM contains.
func ReadAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	cert, _ := pem.Decode(certPEM)
	if cert == nil {
		return nil, errors.New("an authority's certificate is not PEM")
	}
	key, _ := pem.Decode(keyPEM)
	if key == nil {
		return nil, errors.New("an authority's key is not PEM")
	}
	a := &Authority{PEM: certPEM}
	var err error
	if a.cert, err = x509.ParseCertificate(cert.Bytes); err != nil {
		return nil, fmt.Errorf("parse an authority: %w", err)
	}
	if a.key, err = x509.ParseECPrivateKey(key.Bytes); err != nil {
		return nil, fmt.Errorf("parse an authority's key: %w", err)
	}
	return a, nil
}

// KeyPEM returns the authority's private key, for components that sign certificates themselves.
func (a *Authority) KeyPEM() ([]byte, error) { return encodeKey(a.key) }

// Client signs a client certificate. The API server reads user as the user's name, and groups as
// the user's groups.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	template, err := newTemplate(pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return Pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

// Server signs a serving certificate for the given host names and IP addresses.
func (a *Authority) Server(name string, hosts ...string) (Pair, error) {
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return Pair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return a.sign(template)
}

// NewKey returns a new private key for service account tokens.
func NewKey() ([]byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return encodeKey(key)
}

// Write stores the pair as <base>.crt and <base>.key in dir.
func (p Pair) Write(dir, base string) error {
	if err := os.WriteFile(filepath.Join(dir, base+".crt"), p.Cert, 0o644); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, base+".key"), p.Key, 0o600); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return nil
}

func (a *Authority) sign(template *x509.Certificate) (Pair, error) {
	key, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign %q: %w", template.Subject.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: encode("CERTIFICATE", der), Key: keyPEM}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		// A clock that is set back a little must not invalidate the certificate.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(validity),
	}, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
