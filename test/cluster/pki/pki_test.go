// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"encoding/pem"
	"testing"
)

func parse(t *testing.T, p Pair) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(p.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestAuthoritySigns(t *testing.T) {
	ca, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.PEM) {
		t.Fatal("the authority's certificate is no PEM")
	}
	server, err := ca.Server("apiserver", "kubernetes.default.svc", "10.96.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubernetes.default.svc", "10.96.0.1"} {
		if _, err := parse(t, server).Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("serving certificate for %s: %v", name, err)
		}
	}
	client, err := ca.Client("system:node:a", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, client)
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage}); err != nil {
		t.Errorf("client certificate: %v", err)
	}
	if cert.Subject.CommonName != "system:node:a" || cert.Subject.Organization[0] != "system:nodes" {
		t.Errorf("client certificate is for %v", cert.Subject)
	}
}

func TestAuthorityRefusesStrangers(t *testing.T) {
	ours, err := NewAuthority("ours")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := NewAuthority("theirs")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := theirs.Client("admin")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.PEM)
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := parse(t, stranger).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage}); err == nil {
		t.Error("a certificate of another authority was accepted")
	}
}
